//! Secrets recognised by their shape.

use super::GONE;
use regex::Regex;

/// Returns regexes and their replacements.
pub fn token_patterns() -> Vec<(Regex, &'static str)> {
    SHAPES.iter().filter_map(|(shape, instead)| Some((Regex::new(shape).ok()?, *instead))).collect()
}

const SHAPES: [(&str, &str); 23] = [
    // Private keys, also truncated ones.
    (r"-----BEGIN [A-Z ]*PRIVATE KEY[A-Z ]*-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY[A-Z ]*-----|\z)", GONE),
    (r"(?:[A-Za-z0-9+/=]{40,}\s+)*[A-Za-z0-9+/=]*\s*-----END [A-Z ]*PRIVATE KEY[A-Z ]*-----", GONE),
    // User names.
    (r"(/home/|/Users/|/mnt/[a-z]/Users/|[A-Z]:\\+Users\\+)[^/\\\s:\x22']+", "${1}user"),
    // Addresses that grant access, or contain a password or a token.
    (r"\bbot\d{6,}:[A-Za-z0-9_-]{20,}", GONE),
    (r"\b\d{8,10}:[A-Za-z0-9_-]{30,}", GONE),
    (r"https://(?:\w+\.)?discord(?:app)?\.com/api/(?:v\d+/)?webhooks/[^\s\x22']+", GONE),
    (r"https://hooks\.slack(?:-gov)?\.com/[^\s\x22']+", GONE),
    (r"https://[\w.-]+\.webhook\.office\.com/[^\s\x22']+", GONE),
    (r"://[^/\s:@\x22']*:[^/\s\x22']+@", "://[removed]@"),
    (r"(https?://)[A-Za-z0-9_.~-]{16,}@", "${1}[removed]@"),
    (
        r"(?i)([?&](?:sig|signature|key|auth|code|x-(?:amz|goog)-(?:signature|credential|security-token))=)[^&\s\x22']+",
        "${1}[removed]",
    ),
    // HTTP headers.
    (
        r"(?i)\b((?:proxy-)?authorization[\x22'\\]*\s*[:=]\s*[\x22'\\]*(?:(?:bearer|basic|token|digest|bot|apikey|negotiate|aws4-hmac-sha256) +)?)[^\x22'\r\n\\]+",
        "${1}[removed]",
    ),
    (r"(?i)\b((?:set-)?cookie[\x22'\\]*:\s*[\x22'\\]*)[^\x22'\r\n\\]+", "${1}[removed]"),
    (r"(?i)\b(bearer) [A-Za-z0-9._~+/-]{8,}=*", "$1 [removed]"),
    (r"(?i)\b(basic) [A-Za-z0-9+/]{8,}={1,2}", "$1 [removed]"),
    // Tokens of well-known services, by prefix.
    (
        r"\b(?:hf_|api_org_|gh[pousr]_|github_pat_|gl(?:pat|ptt|dt|rt|soat|cbt)-|xox[abceoprs]-|xapp-|tk_|npm_|dckr_pat_|gsk_|r8_|nvapi-|shpat_|dop_v1_|wandb_v1_|pplx-|xai-|lin_api_|pypi-|GOCSPX-|ATATT3x)[A-Za-z0-9_=-]{10,}",
        GONE,
    ),
    (r"\b(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{10,}", GONE),
    (r"\bsk-[A-Za-z0-9_-]{16,}", GONE),
    (r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}", GONE),
    (r"\b(?:AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,}|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,})", GONE),
    // JSON web tokens and Discord bot tokens.
    (r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?", GONE),
    (r"\b[MNO][A-Za-z0-9_-]{22,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}", GONE),
    // W&B keys are forty digits like a commit hash, so the surrounding words must match.
    (r"(?i)(\bwandb\b[^\n]{0,80}\b(?:login|key)\b[^\n]{0,40}?|\bpassword\s+)\b[0-9a-f]{40}\b", "${1}[removed]"),
];
