"""Wrong solutions of lesson 22, each with what the check must say."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from wrong_answers import Answers

from workbench.course.tasks.t22_two_hours import SLIDES, batch_script

wrong = Answers()
RIGHT_LINES = {1: 10, 2: 17, 3: 14, 4: 18, 5: 22, 6: 24}


def steps(**other):
    """The right lines but some: ``s2=18``; None leaves one out."""
    lines = RIGHT_LINES | {int(name[1:]): line for name, line in other.items()}
    return lambda: {step: line for step, line in lines.items() if line is not None}
def script(*pairs: tuple[str, str]):
    """The right batch script with some texts replaced."""
    def answer():
        text = str(batch_script())
        for old, new in pairs:
            assert old in text, old
            text = text.replace(old, new)
        return text
    return answer
def later(ranks): return statistics.median([max(each) for each in zip(*ranks, strict=True)][1:])
def epochs(ranks): return [max(each) for each in zip(*ranks, strict=True)]
MADE: dict[str, dict[str, tuple[Callable[..., Any], str]]] = {
    "22.six_steps": {
        "a_list": (lambda: [10, 17, 14, 18, 22, 24], "your result is of type list, expected a dict"),
        "nothing": (lambda: None, "your result is None. Is there a return?"),
        "counts_from_zero": (steps(s1=9, s2=16, s3=13, s4=17, s5=21, s6=23), "step 1: your result is line 9, ''"),
        "names_as_keys": (lambda: {"init": 10}, "step 1 is not in your result. Its keys are 'init'"),
        "exchanged": (steps(s2=18, s4=17), "step 2: your result is line 18, 'sampler"),
        "global_batch": (
            steps(s2=8),
            "step 2: your result is line 8, 'BATCH_SIZE, EPOCHS = 96, 4'. That line takes none",
        ),
        "seed": (
            steps(s5=12),
            "step 5: your result is line 12, 'torch.manual_seed(42 + hvd.rank())'. That line takes none",
        ),
        "if_available": (steps(s3=13), "step 3: your result is line 13"),
        "the_loader": (steps(s4=19), "step 4: your result is line 19"),
        "plain_optimizer": (steps(s6=23), "step 6: your result is line 23"),
        "five_of_six": (steps(s6=None), "step 6 is not in your result"),
        "beyond": (steps(s6=99), "step 6: your result is line 99; the script has the lines 1 to 33"),
        "a_text": (steps(s1="hvd.init()"), "step 1: your result is 'hvd.init()'. Return the number of a line"),
    },
    "22.speed_up": {
        "without_the_last_epoch": (
            lambda a, b: (
                statistics.median([max(one) for one in zip(*a, strict=True)][:-1])
                / statistics.median([max(one) for one in zip(*b, strict=True)][:-1])
            ),
            "the last epoch is left out, and not the first",
        ),
        "first_epoch_too": (
            lambda a, b: statistics.median(epochs(a)) / statistics.median(epochs(b)),
            "the first epoch is counted",
        ),
        "upside_down": (lambda a, b: later(b) / later(a), "turn the fraction over"),
        "the_mean": (
            lambda a, b: statistics.mean(epochs(a)[1:]) / statistics.mean(epochs(b)[1:]),
            "that is the mean",
        ),
        "mean_of_all": (
            lambda a, b: statistics.mean(epochs(a)) / statistics.mean(epochs(b)),
            "that is the mean of all epochs, or their sum",
        ),
        "sums": (lambda a, b: sum(epochs(a)) / sum(epochs(b)), "that is the mean of all epochs, or their sum"),
        "rank_0": (lambda a, b: later(a) / statistics.median(b[0][1:]), "that is rank 0 alone"),
        "the_fastest": (
            lambda a, b: later(a) / statistics.median([min(each) for each in zip(*b, strict=True)][1:]),
            "an epoch ends when the slowest rank is done, not the fastest",
        ),
        "all_numbers": (
            lambda a, b: later(a) / statistics.median([s for rank in b for s in rank[1:]]),
            "take the maximum over the ranks",
        ),
        "slowest_median": (
            lambda a, b: later(a) / max(statistics.median(rank[1:]) for rank in b),
            "first the slowest rank of each epoch, then the median",
        ),
        "efficiency": (lambda a, b: later(a) / later(b) / len(b), "that is the efficiency"),
        "last_epoch": (lambda a, b: epochs(a)[-1] / epochs(b)[-1], "that is the last epoch alone"),
        "first_epoch": (lambda a, b: epochs(a)[0] / epochs(b)[0], "that is the first epoch alone"),
        "difference": (lambda a, b: later(a) - later(b), "that is a difference of seconds"),
        "prints": (lambda a, b: print(end=""), "your result is None. Is there a return?"),
        "a_text": (lambda a, b: "1.9 times", "your result is of type str, expected a number"),
    },
    "22.batch_script": {
        "as_on_the_slide": (lambda: SLIDES, "line 1, '#!/bin/sh –l': '–' is a typographic dash (U+2013)"),
        "as_windows_writes_it": (script(("\n", "\r\n")), "line 1, '#!/bin/sh -l': it ends in CRLF"),
        "quotes_of_a_slide": (script(('"', "”")), "'”' is no plain character"),
        "one_dash_left": (script(("mpirun -n", "mpirun –n")), "'mpirun –n 8 python test_horovod.py': '–'"),
        "dashes_alone": (
            lambda: SLIDES.replace("–", "-"),
            "Slurm is not told how many processes a node may start: without --ntasks-per-node it is one",
        ),
        "no_shell": (script(("#!/bin/sh -l\n", "")), "line 1 is '#SBATCH -c 6': sbatch wants a line that names"),
        "tasks_for_cores": (script(("--ntasks-per-node 4", "--ntasks-per-node 6")), "--ntasks-per-node is 6"),
        "four_ranks": (script(("-n 8", "-n 4")), "mpirun starts 4 ranks: 2 nodes with 4 GPUs each are 8"),
        "without_n": (script(("mpirun -n 8", "mpirun")), "mpirun is not told how many ranks to start: -n 8"),
        "not_ready": (script(('eval "$(workbench env)"\n', "")), "nothing makes the shell ready"),
        "ready_by_a_list": (script(('eval "$(workbench env)"', "module list")), "nothing makes the shell ready"),
        "ready_too_late": (
            lambda: script(('eval "$(workbench env)"\n', ""))() + 'eval "$(workbench env)"\n',
            "nothing makes the shell ready",
        ),
        "options_last": (
            lambda: '#!/bin/sh -l\neval "$(workbench env)"\n#SBATCH -N 2\nmpirun -n 8 python test_horovod.py\n',
            "line 3, '#SBATCH -N 2': Slurm reads no option behind the first command, line 2",
        ),
        "ready_in_a_comment": (script(('eval "$', '# eval "$')), "nothing makes the shell ready"),
        "option_in_a_comment": (
            script(("#SBATCH --ntasks", "##SBATCH --ntasks")),
            "Slurm is not told how many processes a node may start",
        ),
        "one_node": (script(("-N 2", "-N 1")), "--nodes is 1. The job needs 2"),
        "three_gpus": (
            script(("--gpus-per-node 4", "--gpus-per-node 3")),
            "--gpus-per-node is 3, so a node gives 3 GPUs",
        ),
        "one_gpu_each_of_two": (
            script(("--gpus-per-node 4", "--gres=gpu:2")),
            "--gres is gpu:2, so a node gives 2 GPUs. The job needs 4",
        ),
        "half_of_all": (script(("--gpus-per-node 4", "--gpus 4")), "--gpus is 4, so a node gives 2 GPUs"),
        "two_minutes": (script(("-t 120", "-t 2:00")), "the time limit is 2:00; two hours are -t 120, in minutes"),
        "no_program": (script(("mpirun -n 8 python test_horovod.py\n", "")), "no line starts ranks"),
        "another_program": (script(("test_horovod.py", "")), "python test_horovod.py is not started"),
        "nothing": (lambda: None, "your result is None. Is there a return?"),
        "lines": (lambda: SLIDES.splitlines(), "your result is of type list, expected a text"),
    },
}
for name, answers in MADE.items():
    for called, (answer, words) in answers.items():
        answer.__name__ = called
        wrong(name, words)(answer)
