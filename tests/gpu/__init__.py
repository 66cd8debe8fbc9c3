"""What only a GPU can show. The programs that the ranks run stand beside the tests: verbs, late, trains, dies."""
