"""From logits to distributions to tokens: settings, the one pipeline, random numbers, draft distributions.

Imports nothing by itself: `sampling.params` is free of torch and numpy for those who only carry settings.
"""
