"""
A Django shop with one Celery task, once with this project's outbox and once with django-celery-outbox.

`settings` and `theirs` are also imported by the peer's own interpreter: nothing here needs more than Django and Celery.
"""
