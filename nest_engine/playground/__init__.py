"""A page in the browser to try documents, questions and settings: `nest-engine playground`.

`bench` answers and knows no user interface, `steps` writes a trace as HTML, `app` is the page.
Only `app` needs Gradio, and imports it when a page is made.
"""
