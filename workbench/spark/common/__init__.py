"""What the estimators share.

===============  =====================================================================
``params.py``    their parameters, with Horovod's names, setters and getters
``estimator.py`` from a DataFrame to a trained model
``model.py``     from a trained model to a column of predictions
``store.py``     where the data, the checkpoints and the logs lie
``columns.py``   what a column may hold, and what is wrong with one that does not
``data.py``      a DataFrame as Parquet in the store
``shards.py``    a rank's share of it, in batches
``backend.py``   where the ranks run
===============  =====================================================================
"""
