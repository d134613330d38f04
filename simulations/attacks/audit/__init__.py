"""``fedlsg audit``: tries to prove the epsilon of a run or of settings wrong.

audit_command  the command and its page
audited        the mechanism of a run or of settings, and the epsilon that is claimed for it
threat_models  what the auditor knows and sees, in words
training       the audit of whole training runs
"""
