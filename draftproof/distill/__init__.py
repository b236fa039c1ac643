"""Making a draft for a target: text the target writes itself, a student cut from its layers, training, measuring."""
