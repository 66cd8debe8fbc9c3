"""Lesson 19: what ranks can leave unsaid."""
