"""Grading: what learners hand in is run and judged, by somebody whom their code cannot reach.

Four kinds of processes, from the one that is believed most to the one that is not believed at all::

    workbench grade       reads all notebooks, writes the table; starts one of these for each notebook:
      reaper              becomes the parent of all orphans below it, and ends them when the judge has ended
        judge             knows the tasks; runs no learner's code; measures the time; writes the rows into a pipe
          notebook        runs the cells, then calls learners' functions when the judge asks for it
          ranks           instead of that, for trainings: a process for each rank, the judge between them

What holds
    *Rows.* Which exercises there are and their points come from the tasks, before a notebook's process has started.
    State, text and seconds come from the judge. Neither reads them from a process with learners' code.

    *Functions.* The judge holds cases, expected values, the simulator and ``hvd``. The notebook's process gets
    arguments and gives results, as data; it may only name what it was given, and only by its public verbs
    (``apart/worker.py``). Nothing from it is unpickled. So whatever a notebook replaces in its own process, a function
    passes only if what it returns, and what it asks of ``comm``, is right. There is no row to forge.

    *Ranks.* What has passed is called once more (``fresh.py``): its ranks are drawn at random into two processes that
    know nothing of each other, with numbers that are made when it is graded. So what a rank leaves in a global for
    another one, and what is known of the cases beforehand, gives no points; messages and bytes are counted there, too.

    *Trainings* (``10.convert``, ``13.capstone``, and what says ``live=True``): each rank is a process, with the
    function, the definitions and imports that it names, and nothing else of the notebook. It makes its model from a
    seed, says what its hooks have seen, and its collectives are made by the judge (``live/served.py``). After the
    stages of ``check()`` the ranks train once more, each with weights and images that it alone knows. The judge
    repeats that training itself, with the batches that the ranks say they have taken. The weights are equal only if
    the ranks have told each other, step by step, what their own samples come to (``training/replay.py``).

    *The machine.* Where the kernel has Landlock (Linux 5.13; signals from 6.12), a process with learners' code writes
    in its own folder only, reads the system, Python and this package only, and signals nobody outside, whoever runs it.
    A filter of system calls (``apart/filter.py``) leaves it no network, no tracing, nothing in the kernel that outlives
    it, and no way to change other processes or the modes of files. Memory, files, the disk and the number of processes
    have limits. What outlives its notebook is ended, in whatever session and environment it is.

    ``--sandbox`` adds bubblewrap: no other processes to be seen, no folder but its own.

What does not hold
    - A learner can hand in the course's own solution, retyped or read out of the installed package. Imports and the
      like are flagged (``flags.py``); a flag can be avoided by who knows how.
    - What a function does to its arguments is told by its own process. A notebook that changes this package's code in
      its process can hide that its function changes the caller's array.
    - The ranks of one function share two processes, but for trainings. Who finds out in each run which ranks are beside
      him, and tells the others alone, has written the algorithm for these.
    - Functions for ``hvd``, and those of one process, get the same numbers each time: who knows the cases may have
      written down the results. Where ranks have sent no message, it is flagged.
    - The course's own solution is known again by its text, if it has five statements or more, and by the line that
      ``solution()`` writes above it. Who writes it anew has written it.
    - A training may send something else than gradients, such as all its images, and compute everything everywhere. The
      result is right then. The judge looks for each rank's gradient in the messages of some steps, and flags it.
    - Without Landlock and without ``--sandbox`` a notebook can read, change and delete the files of its user: another
      submission, the table while others are graded, this package, and so the judge of the next notebook. It cannot
      signal or trace the grader, nor use the network, where there is seccomp. The sheet and the CSV say "not confined".
    - The limit on processes is polled every 50 ms where the kernel does not keep it, as for root; that on the memory of
      all of them together as well, that on the disk twice a second. A notebook can keep its processors busy until its
      deadline.
    - On machines that are neither x86-64 nor 64-bit ARM there is no filter; the sheet says so, too.
"""
