"""Input pipelines that run in other processes: TensorFlow's data service, started by ``compute_worker``."""
