"""What makes seeds tell more: counted rare states, shorter stories, reports."""
