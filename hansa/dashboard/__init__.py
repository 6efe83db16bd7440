"""Pages in the browser: the consortium's dashboard, and the page of a silo's administrator."""
