"""uvicorn's HTTP/1.1 connection, where its ways are not this server's: how it refuses, and when it stops to listen."""

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from shared.server.api_error import ApiError

MAX_BYTES_AHEAD = 1 << 16  # that a client may send behind a request which is still being answered


class HttpConnection(H11Protocol):
    """Errors of our shape for what is no HTTP, and a hang-up that is seen whatever was sent before it."""

    def data_received(self, data: bytes) -> None:
        """uvicorn reads no further once something stands behind a request (another one, or a line end that an old
        client adds): then nobody would notice that the client is gone."""
        super().data_received(data)
        if self.conn.their_state is h11.DONE and len(self.conn.trailing_data[0]) <= MAX_BYTES_AHEAD:
            self.flow.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """Once: where the application answers already, or would, it has nobody to talk to any more."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            answer = ApiError(400, msg, code="invalid_http").response()
            headers = [*answer.raw_headers, (b"connection", b"close")]
            response = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
            for event in (response, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
