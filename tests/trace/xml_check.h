/* A small check that a text is well-formed XML: balanced tags, quoted attributes, escaped text, UTF-8. */
#ifndef AXONN_TESTS_XML_CHECK_H
#define AXONN_TESTS_XML_CHECK_H

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

typedef struct xml {
    const char *at;
    int depth, elements;
    char open[32][32];
    char error[160]; /* "" if none */
} xml;

static inline bool xml_fail(xml *x, const char *what)
{
    if (!x->error[0])
        snprintf(x->error, sizeof x->error, "%s at \"%.60s\"", what, x->at);
    return false;
}

/* Reads characters up to `end`, which is not consumed: text, or the value of an attribute. */
static inline bool xml_text(xml *x, char end)
{
    while (*x->at && *x->at != end) {
        utf8proc_int32_t c;
        utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)x->at, -1, &c);
        if (n <= 0 || (c < 0x20 && c != '\n' && c != '\t') || *x->at == '<' || *x->at == '>')
            return xml_fail(x, "a character that may not stand here");
        if (*x->at == '&') {
            size_t length = strspn(x->at + 1, "#0123456789abcdefghijklmnopqrstuvwxyz");
            if (!length || x->at[1 + length] != ';')
                return xml_fail(x, "a bare &");
        }
        x->at += n;
    }
    return true;
}

static inline bool xml_name(xml *x, char name[32])
{
    size_t n = strspn(x->at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-:");
    if (!n || n > 31 || !isalpha((unsigned char)*x->at))
        return xml_fail(x, "no name");
    memcpy(name, x->at, n);
    name[n] = 0;
    x->at += n;
    return true;
}

/* Reads attributes and the end of a tag, after "<name"; *closed: it ends with "/>". */
static inline bool xml_attributes(xml *x, bool *closed)
{
    char name[32];
    for (;;) {
        size_t space = strspn(x->at, " \n\t");
        x->at += space;
        *closed = *x->at == '/';
        if (*x->at == '/' || *x->at == '>') {
            x->at += *closed;
            return *x->at++ == '>' || xml_fail(x, "no >");
        }
        if (!space || !xml_name(x, name) || strncmp(x->at, "=\"", 2) != 0)
            return xml_fail(x, "no attribute");
        x->at += 2;
        if (!xml_text(x, '"') || *x->at++ != '"')
            return xml_fail(x, "an open quote");
    }
}

static inline bool xml_tag(xml *x)
{
    char name[32];
    bool closed;
    x->at++;
    if (*x->at == '/') {
        x->at++;
        if (!xml_name(x, name) || *x->at++ != '>' || x->depth == 0 || strcmp(x->open[--x->depth], name) != 0)
            return xml_fail(x, "an end tag of another element");
        return true;
    }
    if (!xml_name(x, name) || !xml_attributes(x, &closed))
        return xml_fail(x, "a bad tag");
    x->elements++;
    if (closed)
        return true;
    if (x->depth == 32)
        return xml_fail(x, "too deep");
    strcpy(x->open[x->depth++], name);
    return true;
}

/* Whether `text` is one element, with or without <?xml …?> before it; x->error has the reason if not. */
static inline bool xml_check(const char *text, xml *x)
{
    *x = (xml){.at = text};
    if (!strncmp(text, "<?xml ", 6)) {
        x->at = strstr(text, "?>");
        if (!x->at)
            return xml_fail(x, "an open <?xml");
        x->at += 2;
    }
    x->at += strspn(x->at, "\n");
    while (*x->at == '<') {
        if (!xml_tag(x))
            return false;
        if (x->depth == 0)
            break;
        if (!xml_text(x, '<'))
            return false;
    }
    x->at += strspn(x->at, "\n");
    return (x->depth == 0 && x->elements && !*x->at) || xml_fail(x, "text behind the end, or no end");
}

#endif
