"""Sentences for findings. No other package makes them.

Each cause and each fact of ``explain.causes`` has a function in the module of its topic, registered with ``cause_text``
or ``fact_text``. ``finding_wording`` combines their texts.
"""
