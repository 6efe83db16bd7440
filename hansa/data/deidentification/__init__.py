"""De-identification: find personal details in text and replace them."""
