"""Two evaluations against each other, task by task: what `toolstep compare` does."""
