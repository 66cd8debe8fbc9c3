"""What an exercise is, and whether a function solves it: on simulated ranks, on threads, on real ranks."""
