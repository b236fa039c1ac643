"""Protobuf messages to plain objects and back; whatever comes in is checked here."""
