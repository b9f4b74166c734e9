"""The paper's tables and figures, and questions of our own, each a short module that says what it varies and claims."""
