"""Let some of what a block saves for backward go, and make it again from the rest.

:mod:`tracing` records which operators made what a block's call saves, :mod:`draft` is what it
writes down, and :mod:`finishing` makes a :mod:`trace` of it. :mod:`rules` says which operators can
run again, :mod:`reads` notices what a block goes by that operators do not show. :mod:`recipes` runs
operators again, and :mod:`proof` tries that out once. :mod:`saving` holds what one call saves;
:mod:`signature` and :mod:`settings` tell whether a call is like one that was traced; :mod:`remaker`
does all that for the blocks of a model. What a choice is made from is :mod:`mimose.menu`'s.
"""
