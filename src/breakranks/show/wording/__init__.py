"""Sentences: from a finding to what a person reads. No other package makes them.

Each cause and each fact of ``explain.causes`` has a function in the module of its area, which is registered with
``cause_text`` or ``fact_text``; ``finding_wording`` puts them together.
"""
