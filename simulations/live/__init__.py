"""The page of a run that follows it while it trains: a small process with an HTTP server on loopback.

page      the page at this moment, made from the run directory by the builder of report.html
server    who is answered: requests from this machine that know the token
follow    starts the process around a run, and ends it
browser   opens a file in the user's browser, if there is one
"""
