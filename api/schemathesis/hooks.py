# A stream is one string of frames in OpenAPI 3.1, and what a frame is says its contentSchema.
# schemathesis takes the schema of a stream for that of each event (data, event and id): so it
# is handed what the document says of one, and nothing where it says nothing.
import schemathesis


@schemathesis.hook
def before_load_schema(context, raw_schema):
    for stream in streams(raw_schema):
        schema = stream.pop("schema")
        if ref := schema.get("$ref"):
            schema = raw_schema["components"]["schemas"][ref.rsplit("/", 1)[1]]
        if "contentSchema" in schema:
            stream["schema"] = schema["contentSchema"]["items"]


def streams(node):
    """The media type objects of all streams."""
    if isinstance(node, list):
        node = dict(enumerate(node))
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "text/event-stream":
                yield value
            else:
                yield from streams(value)
