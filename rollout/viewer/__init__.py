"""report.html: an evaluation as one page, with every episode to read, and a server for it.

page       the page: data and templates into one file        charts    what is counted, as shapes
episodes   an episode as the page's data                     vocabulary  the texts of token ids
live       the page of an output folder, kept up to date  server    that page on the loopback address
"""
