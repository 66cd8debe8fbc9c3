"""What every part may import: words for numbers and ranks, columns, pauses, JUnit's XML. Imports nothing of ours."""
