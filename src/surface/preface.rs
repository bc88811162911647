//! Owns: detecting HTTP/2 (the gRPC watch) by the first bytes of a connection, without losing them.
//! Never: what comes after.
//!
//! hyper-util's `server::conn::auto` does the same, but has no timeout while it reads these bytes, and does not report
//! when it has read them. A client that connects and sends nothing, or only `PRI`, would keep its place for ever. Here
//! the caller can bound the detection with one timeout.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// Every HTTP/2 connection starts with these bytes. No method of HTTP/1 does.
const HTTP2: &[u8; 3] = b"PRI";

/// A connection whose first bytes were already read. It returns them first.
pub struct Begun<S> {
    stream: S,
    first: [u8; HTTP2.len()],
    read: usize,
    given: usize,
}

/// Reads only as many bytes as the decision takes. True for HTTP/2.
pub async fn begin<S: AsyncRead + Unpin>(mut stream: S) -> io::Result<(bool, Begun<S>)> {
    let mut first = [0; HTTP2.len()];
    let mut read = 0;
    while read < first.len() && first[..read] == HTTP2[..read] {
        match stream.read(&mut first[read..]).await? {
            0 => break,
            more => read += more,
        }
    }
    Ok((first == *HTTP2, Begun { stream, first, read, given: 0 }))
}

impl<S: AsyncRead + Unpin> AsyncRead for Begun<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let begun = &mut *self;
        if begun.given == begun.read {
            return Pin::new(&mut begun.stream).poll_read(cx, buf);
        }
        let size = buf.remaining().min(begun.read - begun.given);
        buf.put_slice(&begun.first[begun.given..begun.given + size]);
        begun.given += size;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Begun<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_bytes_tell_and_are_not_lost() {
        for (said, http2) in
            [("PRI * HTTP/2.0\r\n", true), ("POST / HTTP/1.1\r\n", false), ("PR", false), ("GET /", false), ("", false)]
        {
            let (told, mut begun) = begin(said.as_bytes()).await.unwrap();
            let mut rest = String::new();
            begun.read_to_string(&mut rest).await.unwrap();
            assert_eq!((told, rest.as_str()), (http2, said));
        }
    }
}
