"""What every framework needs for data-parallel training; imports none of them."""

from workbench.common.moved import moved

moved("workbench.training.gradients", "workbench.training.step_reducer")  # lesson 06 has shown it
