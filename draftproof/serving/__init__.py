"""What the two services share: the generation loop, prompts, statistics, logs and process life."""
