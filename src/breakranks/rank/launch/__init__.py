"""The code of `breakranks run` in the processes of the job: output into files, registration, the end of a rank.

It runs before the program of a rank, on Python 3.8 and later, so it imports little, and raises nothing into the job.
"""
