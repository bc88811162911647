//! Owns: RFC 3339 dates of documents ⇄ milliseconds since the epoch.

/// The first and the last millisecond RFC 3339 can spell: years 0000 to 9999.
const FIRST_MS: i64 = -62_167_219_200_000;
const LAST_MS: i64 = 253_402_300_799_999;

const DAY_MS: i64 = 86_400_000;

/// `2026-01-29T10:00:00.000Z`. Times outside the years 0000–9999 print as the nearest time that can be spelled.
pub fn print(ms: i64) -> String {
    let ms = ms.clamp(FIRST_MS, LAST_MS);
    let (days, rest) = (ms.div_euclid(DAY_MS), ms.rem_euclid(DAY_MS));
    let (year, month, day) = civil(days);
    let (hour, minute, second, milli) = (rest / 3_600_000, rest / 60_000 % 60, rest / 1000 % 60, rest % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// The milliseconds of a date and time; finer parts of a second are cut off. `None`: it is none.
pub fn parse(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = bytes.get(from..to)?;
        digits.iter().try_fold(0, |number, byte| match byte {
            b'0'..=b'9' => Some(number * 10 + i64::from(byte - b'0')),
            _ => None,
        })
    };
    let sign_at = |at: usize, signs: &[u8]| bytes.get(at).filter(|byte| signs.contains(byte)).copied();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    sign_at(4, b"-").and(sign_at(7, b"-")).and(sign_at(10, b"Tt ")).and(sign_at(13, b":")).and(sign_at(16, b":"))?;
    // A leap second is spelled as second 60.
    if !(1..=12).contains(&month) || day < 1 || day > days_in(year, month) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let mut at = 19;
    let mut milli = 0;
    if bytes.get(at) == Some(&b'.') {
        let digits = bytes[at + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        for place in 0..3 {
            milli = milli * 10 + if place < digits { number(at + 1 + place, at + 2 + place)? } else { 0 };
        }
        if digits == 0 {
            return None;
        }
        at += 1 + digits;
    }
    let offset_minutes = match sign_at(at, b"Zz+-")? {
        b'Z' | b'z' => {
            at += 1;
            0
        }
        sign => {
            sign_at(at + 3, b":")?;
            let (hours, minutes) = (number(at + 1, at + 3)?, number(at + 4, at + 6)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            at += 6;
            if sign == b'-' { -(hours * 60 + minutes) } else { hours * 60 + minutes }
        }
    };
    let clock = ((hour * 60 + minute - offset_minutes) * 60 + second) * 1000 + milli;
    (at == bytes.len()).then(|| days_from_civil(year, month, day) * DAY_MS + clock)
}

fn days_in(year: i64, month: i64) -> i64 {
    let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970-01-01 of a date of the Gregorian calendar. Years begin in March here, so that the leap day is the
/// last day of a year.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year - era * 400;
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days - era * 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_dates() {
        assert_eq!(print(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(print(1_769_680_800_123), "2026-01-29T10:00:00.123Z");
        assert_eq!(parse("2026-01-29T10:00:00.123Z"), Some(1_769_680_800_123));
        assert_eq!(parse("2026-01-29T11:30:00+01:30"), Some(1_769_680_800_000));
        assert_eq!(parse("2026-01-29t09:00:00.9999999-01:00"), Some(1_769_680_800_999));
        assert_eq!(parse("2024-02-29T00:00:00Z"), Some(1_709_164_800_000));
        assert_eq!(parse("1969-12-31T23:59:60Z"), Some(0));
        assert_eq!(print(i64::MAX), "9999-12-31T23:59:59.999Z");
        assert_eq!(print(i64::MIN), "0000-01-01T00:00:00.000Z");
    }

    #[test]
    fn what_is_no_date_is_refused() {
        for text in [
            "",
            "yesterday",
            "2026-13-01T00:00:00Z",
            "2026-02-29T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01",
            "2026-01-01T00:00:00",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00Zz",
            "2026-01-01T00:00:00+0100",
            "２026-01-01T00:00:00Z",
            "2026/01/01T00:00:00Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_time_that_can_be_spelled_comes_back(ms in FIRST_MS..=LAST_MS) {
            prop_assert_eq!(parse(&print(ms)), Some(ms));
        }

        #[test]
        fn no_text_breaks_the_reader(text in ".{0,40}") {
            let _ = parse(&text);
        }
    }
}
