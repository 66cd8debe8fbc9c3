"""Grading: what learners hand in is run and judged, by somebody whom their code cannot reach.

Four kinds of processes, from the one that is believed most to the one that is not believed at all::

    workbench grade       reads all notebooks, writes the table; starts one of these for each notebook:
      keeper              becomes the parent of all orphans below it, and ends them when the judge has ended
        judge             knows the tasks; runs no learner's code; measures the time; writes the rows into a pipe
          notebook        runs the cells, then calls learners' functions when the judge asks for it
          live            instead of that, for some exercises: one function beside a judge of its own

What holds
    *Rows.* Which exercises there are and their points come from the tasks, before a notebook's process has started.
    State, text and seconds come from the judge. Neither reads them from a process with learners' code.

    *Exercises that are judged apart*, all but those that say ``live=True``: the judge holds cases, expected values,
    the simulator and ``hvd``. The notebook's process gets arguments and gives results, as data; it may only name what
    it was given, and only by its public verbs (``apart/worker.py``). Nothing from it is unpickled. So whatever a
    notebook replaces in its own process, a function passes only if what it returns, and what it asks of ``comm``, is
    right. There is no row to forge.

    *Live exercises* (``10.convert``, ``13.capstone``, and what says so): models and optimizers cannot travel. The
    function, with the definitions and imports that it names and nothing else of the notebook, runs in a fresh process
    beside a judge. Before each row the functions, classes and modules that decide are compared with what they were,
    and the verdict counts only with a key that is sent when the judge is done. That catches whatever is assigned. It
    does not stop a function that is written against it: see below.

    *The machine.* Where the kernel has Landlock (Linux 5.13), a process with learners' code writes in its own folder
    only, reads the system, Python and this package only, opens no TCP connection (6.7), and signals nobody outside
    (6.12), whoever runs it. Memory, the size of files and the number of processes have limits. What outlives its
    notebook is ended, in whatever session and environment it is.

    ``--sandbox`` adds bubblewrap: no network at all, no other processes to be seen, no folder but its own.

What does not hold
    - A learner can hand in the course's own solution, retyped or read out of the installed package. Imports and the
      like are flagged (``flags.py``); a flag can be avoided by who knows how.
    - What a function does to its arguments is told by its own process. A notebook that changes this package's code in
      its process can hide that its function changes the caller's array.
    - The ranks of one function share a process. One that leaves its numbers in a global for the others needs no
      message; where none was sent, it is flagged.
    - A live function can find the judge's frames and objects in its own process and answer in its stead, can change
      something and change it back before it is looked at, or let a thread do so. Such marks want a look at the code.
    - Without Landlock and without ``--sandbox`` a notebook has its user's rights: it can read and change that user's
      files, also the table once it is written, and kill that user's processes, also the grader. Then the run ends; its
      table holds the notebooks before.
    - Two notebooks can tell each other something where both may write; under Landlock there is no such folder.
    - The limit on processes is polled every 50 ms where the kernel does not keep it, as for root; that on the memory of
      all of them together as well. A notebook can keep its processors busy until its deadline.
"""
