//! Owns: cutting a JSON document into its values without holding it: each value is captured as bytes, with its offset.

use std::io::BufRead;

use super::error::Problem;

/// The limit of serde_json and of most other readers.
const DEPTH_MAX: u32 = 127;

pub struct Scan<R> {
    reader: R,
    offset: u64,
}

impl<R: BufRead> Scan<R> {
    pub fn new(reader: R) -> Scan<R> {
        Scan { reader, offset: 0 }
    }

    /// Where the next byte stands.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next byte that is no white space, left in place; `None` at the end.
    pub fn peek(&mut self) -> Result<Option<u8>, Problem> {
        loop {
            let buffer = self.reader.fill_buf()?;
            let Some(byte) = buffer.first().copied() else { return Ok(None) };
            if !byte.is_ascii_whitespace() {
                return Ok(Some(byte));
            }
            let white = buffer.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            self.consume(white);
        }
    }

    /// Takes the next byte that is no white space, if it is the wanted one.
    pub fn take_if(&mut self, wanted: u8) -> Result<bool, Problem> {
        match self.peek()? {
            Some(byte) if byte == wanted => {
                self.consume(1);
                Ok(true)
            }
            Some(_) => Ok(false),
            None => Err(Problem::EndsEarly),
        }
    }

    pub fn expect(&mut self, wanted: u8, otherwise: &'static str) -> Result<(), Problem> {
        if self.take_if(wanted)? { Ok(()) } else { Err(Problem::Syntax(otherwise)) }
    }

    /// The next key of an object, past its colon; `None` past the object's end. `first`: no comma comes before it.
    pub fn key(&mut self, first: bool) -> Result<Option<String>, Problem> {
        if self.take_if(b'}')? {
            return Ok(None);
        }
        if !first {
            self.expect(b',', "expected a comma or the end of an object")?;
        }
        if self.peek()? != Some(b'"') {
            return Err(Problem::Syntax("expected a key"));
        }
        let key = serde_json::from_slice(&self.value(KEY_BYTES_MAX)?).map_err(Problem::of_json)?;
        self.expect(b':', "expected a colon after a key")?;
        Ok(Some(key))
    }

    /// Whether another item of an array follows; past the array's end otherwise.
    pub fn item(&mut self, first: bool) -> Result<bool, Problem> {
        if self.take_if(b']')? {
            return Ok(false);
        }
        if !first {
            self.expect(b',', "expected a comma or the end of an array")?;
        }
        Ok(true)
    }

    /// The bytes of the next value. They are balanced, not necessarily valid: the JSON reader decides that.
    pub fn value(&mut self, bytes_max: usize) -> Result<Vec<u8>, Problem> {
        if self.peek()?.is_none() {
            return Err(Problem::EndsEarly);
        }
        let mut captured = Vec::new();
        let (mut depth, mut in_string, mut escaped) = (0u32, false, false);
        loop {
            let buffer = self.reader.fill_buf()?;
            if buffer.is_empty() {
                // A bare number may end with the document; anything else may not.
                let ended = depth == 0 && !in_string && !captured.is_empty();
                return if ended { Ok(captured) } else { Err(Problem::EndsEarly) };
            }
            let mut end = None;
            for (at, byte) in buffer.iter().enumerate() {
                if in_string {
                    match byte {
                        _ if escaped => escaped = false,
                        b'\\' => escaped = true,
                        b'"' => {
                            in_string = false;
                            if depth == 0 {
                                end = Some(at + 1);
                                break;
                            }
                        }
                        _ => {}
                    }
                    continue;
                }
                match byte {
                    b'"' => in_string = true,
                    b'{' | b'[' => {
                        depth += 1;
                        if depth > DEPTH_MAX {
                            return Err(Problem::TooDeep);
                        }
                    }
                    b'}' | b']' | b',' if depth == 0 => {
                        end = Some(at);
                        break;
                    }
                    b'}' | b']' => {
                        depth -= 1;
                        if depth == 0 {
                            end = Some(at + 1);
                            break;
                        }
                    }
                    _ => {}
                }
            }
            let taken = end.unwrap_or(buffer.len());
            if captured.len() + taken > bytes_max {
                return Err(Problem::TooLong(bytes_max));
            }
            captured.extend_from_slice(&buffer[..taken]);
            self.consume(taken);
            if end.is_some() {
                return Ok(captured);
            }
        }
    }

    /// The next line without its end; `None` after the last.
    pub fn line(&mut self, bytes_max: usize) -> Result<Option<Vec<u8>>, Problem> {
        let mut line = Vec::new();
        loop {
            let buffer = self.reader.fill_buf()?;
            if buffer.is_empty() {
                return Ok(Some(line).filter(|line| !line.is_empty()));
            }
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(buffer.len(), |end| end + 1);
            if line.len() + taken > bytes_max {
                return Err(Problem::TooLong(bytes_max));
            }
            line.extend_from_slice(&buffer[..taken]);
            self.consume(taken);
            if end.is_some() {
                return Ok(Some(line));
            }
        }
    }

    fn consume(&mut self, bytes: usize) {
        self.reader.consume(bytes);
        self.offset += bytes as u64;
    }
}

/// The keys outside of steps are short words.
const KEY_BYTES_MAX: usize = 1024;

/// Whether the brackets of a text nest deeper than its readers allow.
pub fn is_too_deep(text: &[u8]) -> bool {
    matches!(Scan::new(text).value(usize::MAX), Err(Problem::TooDeep))
}
