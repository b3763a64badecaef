import os

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")

# A site of its own has a web server for the admin's style sheets; the example should look right without one.
application = StaticFilesHandler(get_wsgi_application())
