"""The command line. `main`, `using` and `running` hold options alone; what a command does is imported when it runs, so
that help is quick.
"""
