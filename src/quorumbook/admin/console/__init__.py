"""The console: pages for a browser, made of what the HTTP API answers.

pictures  ledgers and streams as rectangles
samples   how many entries come and go, for the chart
actions   what is done by a form: role, typed confirmation, the API's own endpoint
pages     which page shows what
web       sessions, forms, templates
"""
