// Elements of the page. Names and values become text, never markup.

export const at = (id) => document.getElementById(id);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export const make = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);

export const shape = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
