"""Lessons 02 to 09 and 12: functions written by hand, judged on simulated ranks or by their properties."""
