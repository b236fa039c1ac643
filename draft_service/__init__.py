"""The draft server: proposes tokens with their q, drives the rounds and streams the text."""
