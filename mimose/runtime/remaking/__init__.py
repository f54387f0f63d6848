"""Let some of what a block saves for backward go, and make it again from the rest.

:mod:`tracing` records which operators made what a block's call saves; :mod:`rules` says which of
them can run again; :mod:`recipes` runs them; :mod:`saving` holds what one call saves; :mod:`remaker`
does it for the blocks of a model. What a choice is made from is :mod:`mimose.menu`'s.
"""
