"""The job that this process, or thread, is a rank of: start, end, and verbs on arrays.

State of a job lives on its :class:`~workbench.job.context.Context`: what it is, and what upper parts keep of it
(``context.part(Kind)``). What lives longer than a job, or belongs to a process, is this, and nothing else:

=========================================== ============================================================
``job.context.HOLDER``                      the job that runs in this process, or thread
``job.api._JOINING``                        one thread at a time joins or leaves
``job.notifications.NOTIFICATIONS``         who is told of new and lost hosts, over all epochs
``job.process_sets.global_process_set``     the ranks of whatever job runs
``common.alone.ALONE``                      is this process a newcomer to a notebook's job?
``runtime.faults.sigint.INTERRUPTS``        Ctrl-C, which Python has one handler for
``runtime.trace.epochs._past``              what was recorded in epochs that are over
``core.backend.memory.RESULTS``             memory of results that nobody has any more
``transport.mpi_waiting._KEPT``             messages that MPI may still write, with their memory
``elastic.notebook._owed``                  cells that a newcomer has still to run
``elastic.checkpoint_lock._OF_THIS_PROCESS`` folders of checkpoints that this process has locked
``cluster.cluster.RUNNING``                 the cluster of this kernel
``cluster.places._held``                    hosts that Slurm or Ray have given to this kernel
``launch.forks.find._leases``               this kernel's fork server
``jax.host_calls.HOST_CALLS``               functions that compiled graphs call
``jax.tensors.GRAPH``                       the error that a compiled graph hides
``tf.host_calls.HOST_CALLS``                functions that TensorFlow's graphs call
``tf.tensors.GRAPH``                        the error that a graph hides
``tf.tensors._NAMES``, ``tf.tensors._CALLS`` names and calls of each graph, as long as it lives
``course.exercise.BOARD``                   what a learner has done
``course.predictions.ask.BOOK``             what a learner has predicted
``course.grading.live.process.VALUES``      what a graded process knows of its engines
``course.browser.threads.THREADS``          threads in a browser
``course.browser.sockets._OPEN``            sockets there
``course.browser.sockets._BOUND``           their names
``course.browser.sockets._POLLS``           who waits for them
=========================================== ============================================================
"""
