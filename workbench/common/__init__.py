"""What every folder may import: texts for numbers and ranks, columns, pauses, JUnit's XML. Imports nothing of ours."""
