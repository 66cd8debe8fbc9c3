"""Wrong solutions of lesson 17, each with what the check must say."""

from __future__ import annotations

from wrong_answers import Answers

from workbench.course.tasks import task

wrong = Answers()


def _table(engine, question, answer):
    """The right table but for one answer."""
    def table():
        found = task("17.table").reference()
        found[engine][question] = answer
        return found
    return table
@wrong(
    "17.table", "[('ssh', 'agent by ssh')]. A dict is asked for, with the engines ssh, slurm, mpijob, jobset as keys"
)
def no_table(): return [("ssh", "agent by ssh")]
@wrong(
    "17.who_am_i",
    "✗ One launcher inside another: the launcher that started the process itself counts: torchrun on each",
)
def slurm_first(env):
    for names in (
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ):
        if all(name in env for name in names): return tuple(int(env[name]) for name in names)
    return 0, 1, 0
@wrong("17.who_am_i", "✗ One launcher alone: torchrun, mpiexec, srun: srun")
def size_of_the_job(env):
    for names in (
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ):
        if all(name in env for name in names): return tuple(int(env[name]) for name in names)
    return 0, 1, 0
@wrong("17.who_am_i", "✗ A process that was started by hand, also in the shell of a Slurm job: by hand in")
def batch_script_is_a_rank(env):
    if "PMI_RANK" in env or "RANK" in env or "SLURM_STEP_NUM_TASKS" in env: return task("17.who_am_i").reference(env)
    return int(env.get("SLURM_PROCID", 0)), int(env.get("SLURM_NTASKS", 1)), 0
@wrong("17.who_am_i", "your result is ('3', '4', '1'), expected (3, 4, 1)")
def text_for_numbers(env):
    found = task("17.who_am_i").reference(env)
    return tuple(map(str, found))
@wrong("17.who_am_i", "✗ One launcher alone: torchrun, mpiexec, srun: mpiexec")
def torchrun_alone(env): return int(env.get("RANK", 0)), int(env.get("WORLD_SIZE", 1)), int(env.get("LOCAL_RANK", 0))
@wrong("17.discover", "two pods with 4 and 2 GPUs: your result is ['train-worker-0.train:1', 'train-worker-1.train:1']")
def one_slot(pods, service):
    return [f"{line.partition(':')[0]}:1" for line in task("17.discover").reference(pods, service)]
@wrong("17.discover", "worker-0 is not ready")
def takes_everybody(pods, service):
    return task("17.discover").reference([{**pod, "ready": True, "deleted": False} for pod in pods], service)
@wrong("17.discover", "worker-1 is deleted and still ready")
def takes_who_goes(pods, service):
    return task("17.discover").reference([{**pod, "deleted": False} for pod in pods], service)
@wrong("17.discover", "one pod is the launcher")
def takes_the_launcher(pods, service):
    return task("17.discover").reference([{**pod, "role": "worker"} for pod in pods], service)
@wrong("17.discover", "✗ By number: worker-10 comes after worker-2")
def sorts_names(pods, service): return sorted(task("17.discover").reference(pods, service))
@wrong("17.discover", "a pod without GPUs: your result is ['train-worker-0.train:0']")
def no_slot_without_gpus(pods, service):
    found = task("17.discover").reference(pods, service)
    gpus = {pod["name"]: pod["limits"].get("nvidia.com/gpu", "0") for pod in pods}
    return [f"{line.partition(':')[0]}:{gpus[line.partition('.')[0]]}" for line in found]
@wrong(
    "17.recovery", "elastic job goes on from the last commit, which the survivors have in memory, and not from the disk"
)
def elastic_from_disk(n, failed_at, engine, commit_every, checkpoint_every):
    last = failed_at // checkpoint_every * checkpoint_every if checkpoint_every else 0
    return (1 if engine == "elastic" and n > 1 else n), failed_at - last + 1
@wrong(
    "17.recovery",
    "of one rank: one rank alone has no survivor: nobody has the commit, so the checkpoint on disk counts",
)
def one_rank_survives_itself(n, failed_at, engine, commit_every, checkpoint_every):
    elastic = engine == "elastic"
    every = commit_every if elastic else checkpoint_every
    last = failed_at // every * every if every else 0
    return (1 if elastic else n), failed_at - last + 1
@wrong("17.recovery", "your result is empty, expected 2 items")
def finds_nothing(n, failed_at, engine, commit_every, checkpoint_every): return []
@wrong("17.recovery", "item 1: your result is 0, expected 1")
def step_itself_forgotten(n, failed_at, engine, commit_every, checkpoint_every):
    started, again = task("17.recovery").reference(n, failed_at, engine, commit_every, checkpoint_every)
    return started, again - 1
@wrong("17.recovery", "item 0: your result is 4, expected 1")
def elastic_starts_all(n, failed_at, engine, commit_every, checkpoint_every):
    return n, task("17.recovery").reference(n, failed_at, engine, commit_every, checkpoint_every)[1]
@wrong("17.recovery", "a job that is started again has no commit: all processes are gone, and with them their memory")
def restart_from_commit(n, failed_at, engine, commit_every, checkpoint_every):
    return (1 if engine == "elastic" and n > 1 else n), failed_at % commit_every + 1
@wrong("17.discover", "your result is one text, 'train-worker-0.train:4")
def one_text(pods, service): return "\n".join(task("17.discover").reference(pods, service))
@wrong("17.who_am_i", "a batch script has SLURM_PROCID, too, although srun has not started it")
def slurm_before_mpiexec(env):
    for names in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ):
        if names[0] in env: return tuple(int(env[name]) for name in names)
    return 0, 1, 0
wrong("17.table", "mpijob: 'agent by srun'. Look again: which command does the")(
    _table("mpijob", "starts", "agent by srun")
)
wrong("17.table", "slotsPerWorker goes into a hostfile, which this job does not")(
    _table("mpijob", "slots", "slotsPerWorker")
)
wrong("17.table", "slurm: 'agent by ssh'. Look again: in a Slurm job workbench run")(
    _table("slurm", "starts", "agent by ssh")
)
wrong("17.table", "jobset: 'the launcher'. Look again: maxRestarts: 0")(_table("jobset", "replaces", "the launcher"))
wrong("17.table", "jobset: 'the operator'. Look again: each pod is told a name")(
    _table("jobset", "finds", "the operator")
)
