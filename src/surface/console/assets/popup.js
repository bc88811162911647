// A menu below a button.

import { h } from './dom.js';

/** A menu below a button. @param {HTMLElement} button @param {any[]} items */
export function popup(button, items) {
    document.querySelector('.popup')?.remove();
    const close = () => {
        menu.remove();
        removeEventListener('click', outside, true);
        removeEventListener('keydown', keys, true);
    };
    const outside = (event) => {
        if (!menu.contains(event.target)) close();
    };
    const menu = h(
        'div.popup',
        { role: 'menu' },
        items.filter(Boolean).map(([label, work, kind]) =>
            h(
                kind ? `button.${kind}` : 'button',
                {
                    type: 'button',
                    role: 'menuitem',
                    onclick: () => {
                        close();
                        button.focus();
                        work();
                    },
                },
                label,
            ),
        ),
    );
    const keys = (event) => {
        const all = [...menu.querySelectorAll('button')];
        const at = all.indexOf(/** @type {any} */ (document.activeElement));
        if (event.key === 'Escape') {
            event.stopPropagation();
            close();
            button.focus();
        } else if (event.key === 'ArrowDown' || event.key === 'j') all[(at + 1) % all.length].focus();
        else if (event.key === 'ArrowUp' || event.key === 'k') all[(at - 1 + all.length) % all.length].focus();
        else return;
        event.preventDefault();
    };
    document.body.append(menu);
    const place = button.getBoundingClientRect();
    menu.style.top = `${Math.min(place.bottom + 4, innerHeight - menu.offsetHeight - 8)}px`;
    menu.style.left = `${Math.max(8, Math.min(place.right - menu.offsetWidth, innerWidth - menu.offsetWidth - 8))}px`;
    addEventListener('click', outside, true);
    addEventListener('keydown', keys, true);
    menu.querySelector('button')?.focus();
}
