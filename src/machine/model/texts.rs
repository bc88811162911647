//! Owns: the short texts of a session: its fallback description, the preview of its last message, and what an adapter
//! sends of a reply with silence markers.

/// A longer description is cut.
const DESCRIPTION_CHARS_MAX: usize = 80;
const DESCRIPTION_CUT_CHARS: usize = 77;
/// A preview is part of every row of a list.
const PREVIEW_CHARS_MAX: usize = 1000;

/// An agent writes one of these when it does not want to answer.
const SILENCE_MARKERS: [&str; 2] = ["<NO_REPLY>", "<EMPTY_RESPONSE>"];

/// The description that a session gets from its first message: one line of at most 80 characters. `None` if nothing is left.
pub fn fallback_description(text: &str) -> Option<String> {
    // A huge message is not read to its end for one line of it.
    let mut line = String::new();
    let mut chars = 0;
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
            chars += 1;
        }
        for char in word.chars() {
            line.push(char);
            chars += 1;
            if chars > DESCRIPTION_CHARS_MAX {
                let cut: String = line.chars().take(DESCRIPTION_CUT_CHARS).collect();
                return Some(cut + "...");
            }
        }
    }
    (!line.is_empty()).then_some(line)
}

/// The first characters of a message, for lists.
pub fn preview(text: &str) -> String {
    text.chars().take(PREVIEW_CHARS_MAX).collect()
}

/// What is sent of a reply: silence markers are removed wherever they stand, then the rest is trimmed. `None`: nothing is
/// sent, because there was a marker and nothing else.
pub fn without_silence(text: &str) -> Option<String> {
    let marked = SILENCE_MARKERS.iter().any(|marker| text.contains(marker));
    let mut rest = text.to_owned();
    for marker in SILENCE_MARKERS {
        rest = rest.replace(marker, "");
    }
    let rest = rest.trim().to_owned();
    (!marked || !rest.is_empty()).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_one_line_of_at_most_eighty_characters() {
        assert_eq!(fallback_description("  one\n\ttwo  three ").as_deref(), Some("one two three"));
        assert_eq!(fallback_description(" \n ").as_deref(), None);
        let eighty = "é".repeat(80);
        assert_eq!(fallback_description(&eighty).as_deref(), Some(eighty.as_str()));
        let cut = fallback_description(&"é".repeat(81)).unwrap();
        assert_eq!(cut, "é".repeat(77) + "...");
        assert_eq!(fallback_description(&"word ".repeat(1000)).unwrap().chars().count(), 80);
    }

    #[test]
    fn a_preview_keeps_whole_characters() {
        assert_eq!(preview(&"é".repeat(2000)), "é".repeat(1000));
        assert_eq!(preview("short\ntext"), "short\ntext");
    }

    #[test]
    fn silence_markers_go_wherever_they_stand() {
        for (text, sent) in [
            ("hello", Some("hello")),
            ("", Some("")),
            ("<NO_REPLY>", None),
            (" <NO_REPLY>\n<EMPTY_RESPONSE> ", None),
            ("yes <NO_REPLY> no", Some("yes  no")),
            ("<EMPTY_RESPONSE>yes", Some("yes")),
            ("<NO_REPLY", Some("<NO_REPLY")),
        ] {
            assert_eq!(without_silence(text).as_deref(), sent, "{text:?}");
        }
    }
}
