"""Ranks in the tasks of Apache Spark, under Horovod's names: ``import workbench.spark``.

::

    spark = SparkSession.builder.getOrCreate()
    workbench.spark.run(train, args=(0.1,), num_proc=4)        # what train returns, by rank

    estimator = workbench.spark.torch.TorchEstimator(num_proc=4, store=Store.create("/shared/work"), model=model, …)
    estimator.fit(training_data).transform(other_data)

=================  ==================================================================
``run.py``         a function on ranks in Spark's tasks; in an elastic job, too
``offers.py``      the Spark job behind it: tasks that offer a slot each
``session.py``     the user's Spark session: its version, slots, addresses, lost tasks
``common/``        what the estimators share: parameters, store, data, prediction
``torch, keras``   an estimator for each
=================  ==================================================================

Spark's tasks only hold the slots, and carry the standard streams of the ranks. The ranks are processes of their own
beside them, as with any other launcher. Each node needs the same environment as the driver, at the same path.
"""

from workbench.spark.run import run, run_elastic

__all__ = ["run", "run_elastic"]
