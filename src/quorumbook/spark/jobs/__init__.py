"""Jobs over a whole cluster: each is a list of units, one function that does a unit, a report.

frame     units, what came of them, the report and its exit code
journal   what of a job is done, in a file, so that it can be resumed
engine    runs units on Spark, a wave at a time
pace      what reads and writes of a job have to wait for, by bookie

One module for each job says which units there are (``plan``), does one (``work``, a coroutine
that runs on an executor), and sums up (``conclude``).  Payloads stay in the task that reads them;
only what was found comes back.
"""
