//! Owns: group routing: which message asks for a turn, and how the agent reads it. A truth table.

use super::source::SessionType;

/// What decides about one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Said<'a> {
    pub session_type: SessionType,
    pub by_owner: bool,
    pub mentioned: bool,
    pub text: &'a str,
    /// The sender's display name.
    pub name: Option<&'a str>,
    /// Whether an owner's message in a group asks for a turn although it is not directed at the agent.
    pub owner_always: bool,
}

/// The text of the turn that a message asks for; `None` if it asks for none.
pub fn prompt(said: &Said<'_>) -> Option<String> {
    let note = match (said.session_type, said.mentioned, said.by_owner && said.owner_always) {
        (SessionType::Direct, _, _) => return Some(said.text.to_owned()),
        (SessionType::Group, true, _) => "",
        (SessionType::Group, false, true) => "[not directed at you] ",
        (SessionType::Group, false, false) => return None,
    };
    Some(match said.name.filter(|name| !name.is_empty()) {
        Some(name) => format!("[{name}] {note}{}", said.text),
        None => format!("{note}{}", said.text),
    })
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    /// Every row of the table, as text. A change of the rules changes this page.
    const GOLDEN: &str = "\
direct other unmentioned unnamed  strict -> hi
direct other unmentioned unnamed  always -> hi
direct other unmentioned named    strict -> hi
direct other unmentioned named    always -> hi
direct other mentioned   unnamed  strict -> hi
direct other mentioned   unnamed  always -> hi
direct other mentioned   named    strict -> hi
direct other mentioned   named    always -> hi
direct owner unmentioned unnamed  strict -> hi
direct owner unmentioned unnamed  always -> hi
direct owner unmentioned named    strict -> hi
direct owner unmentioned named    always -> hi
direct owner mentioned   unnamed  strict -> hi
direct owner mentioned   unnamed  always -> hi
direct owner mentioned   named    strict -> hi
direct owner mentioned   named    always -> hi
group  other unmentioned unnamed  strict -> no turn
group  other unmentioned unnamed  always -> no turn
group  other unmentioned named    strict -> no turn
group  other unmentioned named    always -> no turn
group  other mentioned   unnamed  strict -> hi
group  other mentioned   unnamed  always -> hi
group  other mentioned   named    strict -> [Ann] hi
group  other mentioned   named    always -> [Ann] hi
group  owner unmentioned unnamed  strict -> no turn
group  owner unmentioned unnamed  always -> [not directed at you] hi
group  owner unmentioned named    strict -> no turn
group  owner unmentioned named    always -> [Ann] [not directed at you] hi
group  owner mentioned   unnamed  strict -> hi
group  owner mentioned   unnamed  always -> hi
group  owner mentioned   named    strict -> [Ann] hi
group  owner mentioned   named    always -> [Ann] hi
";

    #[test]
    fn the_routing_table_is_what_the_page_says() {
        let mut table = String::new();
        for session_type in [SessionType::Direct, SessionType::Group] {
            for by_owner in [false, true] {
                for mentioned in [false, true] {
                    for name in [None, Some("Ann")] {
                        for owner_always in [false, true] {
                            let said = Said { session_type, by_owner, mentioned, text: "hi", name, owner_always };
                            let word = |yes: bool, a: &'static str, b: &'static str| if yes { a } else { b };
                            let _ = writeln!(
                                table,
                                "{:<6} {} {:<11} {:<8} {} -> {}",
                                word(session_type == SessionType::Direct, "direct", "group"),
                                word(by_owner, "owner", "other"),
                                word(mentioned, "mentioned", "unmentioned"),
                                word(name.is_some(), "named", "unnamed"),
                                word(owner_always, "always", "strict"),
                                prompt(&said).as_deref().unwrap_or("no turn"),
                            );
                        }
                    }
                }
            }
        }
        assert_eq!(table, GOLDEN);
    }

    #[test]
    fn an_empty_name_gets_no_bracket() {
        let said = Said {
            session_type: SessionType::Group,
            by_owner: false,
            mentioned: true,
            text: "hi",
            name: Some(""),
            owner_always: true,
        };
        assert_eq!(prompt(&said).as_deref(), Some("hi"));
    }
}
