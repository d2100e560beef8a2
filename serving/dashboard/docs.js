// Apart from the page, so that no script is inline.
SwaggerUIBundle({url: "/openapi.json", dom_id: "#reference", deepLinking: true, displayRequestDuration: true});
