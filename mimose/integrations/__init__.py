"""Adapters for training libraries; each module needs the library that it is named after.

They sit above :mod:`mimose.handle` and nothing in the library imports them, but for
``mimose.MimoseCallback``, the Trainer's, which is looked up when it is asked for.
"""
