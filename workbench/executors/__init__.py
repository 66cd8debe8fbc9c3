"""Ranks in executors: processes that another engine has started for a job, as Spark's tasks and Ray's actors are.

====================  =================================================================
``executor.py``       what runs in such a process: it offers a slot, and runs scripts
``registry.py``    the launcher's end: who is there, and the way to each
``channel.py``        signed messages between the two
``client.py``         what the launcher starts to run a script there, as it starts ssh
``jobs.py``           a function, called on ranks that start there
``calls.py``          functions, called one after the other on ranks that stay
====================  =================================================================
"""
