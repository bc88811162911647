//! Owns: messages of JSON on a WebSocket over the simulated network.
//! Never: what a message means.

use std::net::{IpAddr, SocketAddr};

use axum::http::HeaderValue;
use axum::http::header::AUTHORIZATION;
use futures::{SinkExt, StreamExt};
use serde_json::Value;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::client::Request;
use turmoil::net::TcpStream;

use crate::host::CLIENT_PORT;

pub type Socket = WebSocketStream<TcpStream>;

/// The request that opens a WebSocket, with the token of the caller.
pub fn request(path: &str, token: &str) -> Request {
    let mut request = format!("ws://localhost{path}").into_client_request().expect("a valid URL");
    let bearer = HeaderValue::from_str(&format!("Bearer {token}")).expect("a token is a valid header");
    request.headers_mut().insert(AUTHORIZATION, bearer);
    request
}

pub async fn connect(host: IpAddr, request: Request) -> Result<Socket, String> {
    let stream = TcpStream::connect(SocketAddr::new(host, CLIENT_PORT)).await.map_err(|error| error.to_string())?;
    let shaken = tokio_tungstenite::client_async(request, stream).await;
    shaken.map(|(socket, _)| socket).map_err(|error| error.to_string())
}

pub async fn send(socket: &mut Socket, frame: Value) -> Result<(), String> {
    socket.send(Message::Text(frame.to_string().into())).await.map_err(|error| error.to_string())
}

pub async fn ping(socket: &mut Socket) -> Result<(), String> {
    socket.send(Message::Ping(Vec::new().into())).await.map_err(|error| error.to_string())
}

/// The next message.
pub async fn next(socket: &mut Socket) -> Result<Value, String> {
    loop {
        match socket.next().await {
            Some(Ok(Message::Text(text))) => return serde_json::from_str(&text).map_err(|error| error.to_string()),
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error.to_string()),
            None => return Err("closed".to_owned()),
        }
    }
}
